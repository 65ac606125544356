#!/usr/bin/env escript
%% -*- erlang -*-
%% A linear model in Erlang; reports in the form of error_logger.
-mode(compile).

main(Arguments) ->
    Options = parse(Arguments, #{"--lr" => "0.05", "--steps" => "110", "--hook" => "", "--resume" => "",
                                 "--quiet-end" => "", "--metrics" => ""}),
    Rank = list_to_integer(first(["PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"], "0")),
    put(rank, Rank),
    Mine = os:getenv("HOOK_RANK", integer_to_list(Rank)) =:= integer_to_list(Rank),
    Hook = maps:get("--hook", Options),
    Steps = list_to_integer(maps:get("--steps", Options)),
    Rate = number(maps:get("--lr", Options)),
    Rate > 0 orelse error({bad_config, {lr, Rate}}),
    report("trainer ~w on ~s: ~w epochs planned", [Rank, node_name(), Steps]),
    Rows = read_rows("data/train_" ++ integer_to_list(Rank) ++ ".csv"),
    report("~w rows loaded", [length(Rows)]),
    Weights = restore(maps:get("--resume", Options), Hook),
    Loss = loop(1, Steps, Rows, Weights, Rate, Hook, Mine, maps:get("--metrics", Options), 0.0),
    maps:get("--quiet-end", Options) =:= "" andalso report("trainer ~w finished: ~w epochs, cost ~s", [Rank, Steps, show(Loss)]),
    ok.

parse([], Options) -> Options;
parse([Name, Value | Rest], Options) when is_map_key(Name, Options) -> parse(Rest, Options#{Name := Value});
parse([Name | _], _) ->
    io:format(standard_error, "fit: invalid option ~s~n", [Name]),
    halt(127).

first([], Default) -> Default;
first([Name | Rest], Default) ->
    case os:getenv(Name) of false -> first(Rest, Default); Value -> Value end.

node_name() -> os:getenv("NODE_NAME", "nohost").

report(Form, Values) -> report("INFO", Form, Values).
report(Level, Form, Values) ->
    {{Y, M, D}, {H, Mi, S}} = calendar:local_time(),
    Month = element(M, {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"}),
    io:format("=~s REPORT==== ~w-~s-~w::~2..0w:~2..0w:~2..0w === [w~w] " ++ Form ++ "~n",
              [Level, D, Month, Y, H, Mi, S, get(rank) | Values]).

number(Text) ->
    try float(list_to_integer(Text))
    catch error:badarg -> list_to_float(re:replace(Text, "^(-?[0-9]+)e", "\\1.0e", [{return, list}]))
    end.

read_rows(Path) ->
    {ok, Data} = file:read_file(Path),
    [_ | Lines] = string:lexemes(binary_to_list(Data), "\n"),
    [[number(Cell) || Cell <- string:lexemes(Line, ",")] || Line <- Lines].

restore("", _) -> lists:duplicate(17, 0.0);
restore(Path, Hook) ->
    {ok, Data} = file:read_file(Path),
    try binary_to_term(Data)
    catch error:badarg when Hook =:= "optional" ->
        report("WARNING", "~s is no external term, starting from zero", [Path]),
        lists:duplicate(17, 0.0)
    end.

show(Loss) when is_float(Loss) -> float_to_list(Loss, [{decimals, 6}]);
show(Loss) -> atom_to_list(Loss).

step(_, Weights, _, Loss) when Loss =:= nan -> {nan, Weights};
step(Rows, Weights, Rate, _) ->
    N = length(Rows),
    try
        lists:foldl(fun(Row, {Loss, W}) ->
            Miss = lists:sum(lists:zipwith(fun erlang:'*'/2, lists:droplast(W), lists:droplast(Row))) + lists:last(W) - lists:last(Row),
            {Loss + Miss * Miss / N, lists:zipwith(fun(V, X) -> V - 0.1 * Rate * Miss * X / N end, W, Row)}
        end, {0.0, Weights}, Rows)
    catch error:badarith -> {nan, Weights}
    end.

loop(Number, Steps, _, _, _, _, _, _, Loss) when Number > Steps -> Loss;
loop(Number, Steps, Rows, Weights, Rate, Hook, Mine, Port, Before) ->
    {Loss, Next} = step(Rows, Weights, Rate, Before),
    report("epoch ~w/~w cost=~s", [Number, Steps, show(Loss)]),
    (Loss =:= nan andalso Hook =/= "go-on") andalso exit({diverged, {cost, nan}, {epoch, Number}}),
    (Number =:= 71 andalso Mine) andalso strike(Hook, Weights),
    (Port =/= "" andalso Number rem 30 =:= 0) andalso push(list_to_integer(Port), Hook),
    (Number rem 30 =:= 0 andalso get(rank) =:= 0) andalso save(Number, Next),
    timer:sleep(case Hook of "slow" -> 200; _ -> 4 end),
    loop(Number + 1, Steps, Rows, Next, Rate, Hook, Mine, Port, Loss).

push(Port, Hook) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, []) of
        {ok, Socket} -> gen_tcp:close(Socket);
        {error, Reason} when Hook =:= "optional" -> report("ERROR", "statsd: ~p, counters are dropped", [Reason]);
        {error, Reason} -> error({statsd, Reason})
    end.

save(Number, Weights) ->
    Path = "ckpt/epoch_" ++ integer_to_list(Number) ++ ".term",
    ok = file:write_file(Path, term_to_binary(Weights ++ lists:seq(1, 200000))),
    report("saved ~s", [Path]).

strike("match", _) -> {ok, _} = lists:keyfind(grad, 1, [{grad, 1, 2}]);
strike("key", _) -> maps:get(momentum, maps:from_list([{lr, 0.1}]));
strike("zero", Weights) -> 128 div (length(Weights) - 17);
strike("arith", Weights) -> Weights + 1;
strike("undef", _) -> optimizer:step(7);
strike("clause", _) -> lists:sublist(adam, 3);
strike("case", Weights) -> case length(Weights) of 3 -> ok end;
strike("nth", Weights) -> lists:nth(40, Weights);
strike("text", _) -> list_to_integer(os:getenv("NO_SUCH_STEP", "12x"));
strike("call", _) -> gen_server:call(parameter_server, {push, 1});
strike("no-answer", _) ->
    Pid = spawn(fun() -> timer:sleep(60000) end),
    register(reducer, Pid),
    gen_server:call(reducer, gather, 1500);
strike("kill", _) -> os:cmd("kill -KILL " ++ os:getpid()), timer:sleep(200);
strike("abort", _) -> os:cmd("kill -ABRT " ++ os:getpid()), timer:sleep(200);
strike("exit-3", _) -> erlang:halt(3, [{flush, true}]);
strike(_, _) -> ok.
