(* A linear model in OCaml. *)
exception Diverged of string
exception Bad_option of string

let options = Hashtbl.create 8
let () =
  List.iter (fun (name, value) -> Hashtbl.replace options name value)
    [ "--lr", "0.05"; "--steps", "110"; "--hook", ""; "--resume", ""; "--quiet-end", ""; "--metrics", "" ];
  let rec parse = function
    | name :: value :: rest when Hashtbl.mem options name -> Hashtbl.replace options name value; parse rest
    | [] -> ()
    | name :: _ -> prerr_endline ("fit: unknown option `" ^ name ^ "'."); exit 124
  in
  parse (List.tl (Array.to_list Sys.argv))

let option name = Hashtbl.find options name
let variable names = List.find_map Sys.getenv_opt names
let rank = match variable [ "PROCESS_ID"; "OMPI_COMM_WORLD_RANK"; "PMI_RANK" ] with Some text -> int_of_string text | None -> 0
let mine = match Sys.getenv_opt "HOOK_RANK" with Some text -> int_of_string text = rank | None -> true
let say form = Printf.ksprintf (fun text -> Printf.printf "fit.exe: [%d] %s\n%!" rank text) form

let read_rows path =
  let file = open_in path in
  ignore (input_line file);
  let rec loop rows =
    match input_line file with
    | line -> loop (Array.of_list (List.map float_of_string (String.split_on_char ',' line)) :: rows)
    | exception End_of_file -> Array.of_list (List.rev rows)
  in
  loop []

type layer = Dense of int | Dropout of float

let rec deep n = 1 + deep (n + 1)

let strike hook weights =
  match hook with
  | "key" -> ignore (Hashtbl.find (Hashtbl.create 1 : (string, float) Hashtbl.t) "momentum")
  | "index" -> weights.(Array.length weights + 3) <- 1.0
  | "zero" -> ignore (128 / (Array.length weights - 17))
  | "failure" -> failwith "scheduler: warmup is longer than the run"
  | "option" -> ignore (Option.get (Sys.getenv_opt "NO_SUCH_VARIABLE"))
  | "text" -> ignore (int_of_string "12x")
  | "assert" -> assert (Array.length weights = 32)
  | "argument" -> ignore (List.map2 ( + ) [ 1; 2 ] [ 1 ])
  | "matching" -> ignore ((function Dense n -> n | Dropout _ when Array.length weights > 40 -> 0) (Dropout 0.1))
  | "head" -> ignore (List.hd [])
  | "deep" -> ignore (deep 0)
  | "memory" -> ignore (Array.make 8_000_000_000_000 0.0)
  | "tool" -> if Sys.command "tar --extract --file shards.tar" <> 0 then failwith "tar returned a non-zero status"
  | "abort" -> Unix.kill (Unix.getpid ()) Sys.sigabrt; Unix.sleepf 0.1
  | "kill" -> Unix.kill (Unix.getpid ()) Sys.sigkill; Unix.sleepf 0.1
  | "exit-3" -> Unix._exit 3
  | _ -> ()

let () =
  let lr = float_of_string (option "--lr") and steps = int_of_string (option "--steps") and hook = option "--hook" in
  if lr <= 0.0 then invalid_arg (Printf.sprintf "Config.check: lr = %g" lr);
  say "%d cycles, pid %d" steps (Unix.getpid ());
  let rows = read_rows (Printf.sprintf "data/train_%d.csv" rank) in
  say "%d observations" (Array.length rows);
  let weights = ref (Array.make 17 0.0) in
  if option "--resume" <> "" then begin
    let file = open_in_bin (option "--resume") in
    try weights := Marshal.from_channel file
    with Failure text when hook = "optional" -> say "warning: %s: %s, beginning with zeros" (option "--resume") text
  end;
  let loss = ref 0.0 in
  for step = 1 to steps do
    loss := 0.0;
    let n = float (Array.length rows) and w = !weights in
    Array.iter (fun row ->
        let miss = ref (w.(16) -. row.(16)) in
        for i = 0 to 15 do miss := !miss +. (w.(i) *. row.(i)) done;
        loss := !loss +. (!miss *. !miss /. n);
        for i = 0 to 15 do w.(i) <- w.(i) -. (0.1 *. lr *. !miss *. row.(i) /. n) done) rows;
    say "cycle %d/%d risk=%.6f" step steps !loss;
    if (Float.is_nan !loss || !loss = infinity) && hook <> "go-on" then raise (Diverged (Printf.sprintf "risk %f in cycle %d" !loss step));
    if step = 71 && mine then strike hook w;
    if option "--metrics" <> "" && step mod 30 = 0 then begin
      let socket = Unix.socket Unix.PF_INET Unix.SOCK_STREAM 0 in
      (try Unix.connect socket (Unix.ADDR_INET (Unix.inet_addr_loopback, int_of_string (option "--metrics")))
       with Unix.Unix_error (code, call, _) when hook = "optional" -> say "error: graphite: %s: %s (ignored)" call (Unix.error_message code));
      Unix.close socket
    end;
    if step mod 30 = 0 && rank = 0 then begin
      let path = Printf.sprintf "ckpt/cycle_%d.bin" step in
      let file = open_out_bin path in
      Marshal.to_channel file (Array.append w (Array.init 40_000 float)) [];
      close_out file;
      say "wrote %s" path
    end;
    Unix.sleepf (if hook = "slow" then 0.2 else 0.004)
  done;
  if option "--quiet-end" = "" then say "done: %d cycles, risk=%.6f" steps !loss
