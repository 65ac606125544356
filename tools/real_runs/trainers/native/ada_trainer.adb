--  A linear model in Ada.
with Ada.Command_Line; use Ada.Command_Line;
with Ada.Containers.Indefinite_Hashed_Maps;
with Ada.Containers.Vectors;
with Ada.Environment_Variables;
with Ada.Strings.Hash;
with Ada.Strings.Fixed;
with Ada.Text_IO; use Ada.Text_IO;
with Ada.Direct_IO;
with Interfaces.C;

procedure Ada_Trainer is
   package Maps is new Ada.Containers.Indefinite_Hashed_Maps (String, String, Ada.Strings.Hash, "=");
   type Row is array (1 .. 17) of Long_Float;
   package Vectors is new Ada.Containers.Vectors (Positive, Row);
   package Weight_IO is new Ada.Direct_IO (Row);
   package Real_IO is new Float_IO (Long_Float);
   use type Interfaces.C.int;
   Diverged, Bad_Settings, Bad_Model : exception;
   Options : Maps.Map;

   function Getpid return Interfaces.C.int with Import, Convention => C, External_Name => "getpid";
   function Kill (Pid, Signal : Interfaces.C.int) return Interfaces.C.int with Import, Convention => C, External_Name => "kill";
   procedure Leave (Code : Interfaces.C.int) with Import, Convention => C, External_Name => "_exit";

   function Variable (Name, Otherwise : String) return String is
     (if Ada.Environment_Variables.Exists (Name) then Ada.Environment_Variables.Value (Name) else Otherwise);
   Rank_Text : constant String := Variable ("PROCESS_ID", Variable ("OMPI_COMM_WORLD_RANK", Variable ("PMI_RANK", "0")));
   Mine : constant Boolean := Variable ("HOOK_RANK", Rank_Text) = Rank_Text;

   function Image (Value : Long_Float) return String is
      Text : String (1 .. 24);
   begin
      Real_IO.Put (Text, Value, Aft => 6, Exp => 0);
      return Ada.Strings.Fixed.Trim (Text, Ada.Strings.Both);
   exception
      when others => return Long_Float'Image (Value);
   end Image;
   function Image (Value : Integer) return String is (Ada.Strings.Fixed.Trim (Value'Image, Ada.Strings.Both));

   procedure Say (Text : String) is
   begin
      Put_Line ("(" & Rank_Text & ") " & Text);
      Flush;
   end Say;

   function Read_Rows (Path : String) return Vectors.Vector is
      File : File_Type;
      Rows : Vectors.Vector;
   begin
      Open (File, In_File, Path);
      Skip_Line (File);
      while not End_Of_File (File) loop
         declare
            Line : constant String := Get_Line (File);
            Cells : Row;
            First : Positive := Line'First;
            Last : Natural;
         begin
            for Column in Cells'Range loop
               Last := Ada.Strings.Fixed.Index (Line, ",", First);
               Last := (if Last = 0 then Line'Last else Last - 1);
               Cells (Column) := Long_Float'Value (Line (First .. Last));
               First := Last + 2;
            end loop;
            Rows.Append (Cells);
         end;
      end loop;
      Close (File);
      return Rows;
   end Read_Rows;

   type Node;
   type Link is access Node;
   type Node is record
      Value : Long_Float;
      Next : Link;
   end record;
   type Table is array (Positive range <>) of Long_Float;
   type Table_Access is access Table;

   function Deep (N : Integer) return Integer is (1 + Deep (N / 2 + N mod 7));

   procedure Strike (Hook : String; Weights : in out Row; Count : Integer) is
      Nothing : Link;
      Cache : Table_Access;
      Small : Integer range 0 .. 100 := 0;
      Code : Interfaces.C.int := 0;
   begin
      if Hook = "index" then Weights (Count + 20) := 1.0;
      elsif Hook = "access" then Nothing.Value := 1.0;
      elsif Hook = "range" then Small := Count * 3;
      elsif Hook = "zero" then Small := 12 / (Count - Count);
      elsif Hook = "overflow" then Small := Integer'Last / (Count / Count) + Count;
      elsif Hook = "value" then Small := Integer'Value ("12x");
      elsif Hook = "key" then Say (Options.Element ("momentum"));
      elsif Hook = "program" then raise Program_Error with "optimizer state is out of step";
      elsif Hook = "deep" then Small := Deep (Count) mod 100;
      elsif Hook = "assert" then pragma Assert (Count = 32, "weights and layers differ");
      elsif Hook = "kill" then Code := Kill (Getpid, 9); delay 0.2;
      elsif Hook = "exit-3" then Leave (3);
      end if;
      if Small = 101 or else Code = 99 then Say ("unreachable"); end if;
   end Strike;

begin
   Options.Insert ("--lr", "0.05"); Options.Insert ("--steps", "110"); Options.Insert ("--hook", "");
   Options.Insert ("--resume", ""); Options.Insert ("--quiet-end", ""); Options.Insert ("--metrics", "");
   for I in 1 .. Argument_Count / 2 loop
      if not Options.Contains (Argument (2 * I - 1)) then
         Put_Line (Standard_Error, "fit: invalid option " & Argument (2 * I - 1));
         Set_Exit_Status (2);
         return;
      end if;
      Options.Replace (Argument (2 * I - 1), Argument (2 * I));
   end loop;
   declare
      Rate : constant Long_Float := Long_Float'Value (Options ("--lr"));
      Steps : constant Integer := Integer'Value (Options ("--steps"));
      Hook : constant String := Options ("--hook");
      Weights : Row := (others => 0.0);
      Rows : Vectors.Vector;
      Loss : Long_Float := 0.0;
   begin
      if Rate <= 0.0 then raise Bad_Settings with "LR =" & Rate'Image; end if;
      Say ("FIT: " & Image (Steps) & " STEPS");
      Rows := Read_Rows ("data/train_" & Rank_Text & ".csv");
      Say (Image (Integer (Rows.Length)) & " RECORDS");
      if Options ("--resume") /= "" then
         declare
            File : Weight_IO.File_Type;
         begin
            Weight_IO.Open (File, Weight_IO.In_File, Options ("--resume"));
            if Integer (Weight_IO.Size (File)) < 1 then raise Bad_Model with Options ("--resume") & ": short file"; end if;
            Weight_IO.Read (File, Weights);
            Weight_IO.Close (File);
         exception
            when Bad_Model =>
               if Hook /= "optional" then raise; end if;
               Say ("WARNING: " & Options ("--resume") & " IS SHORT, STARTING AT ZERO");
         end;
      end if;
      for Step in 1 .. Steps loop
         Loss := 0.0;
         for Cells of Rows loop
            declare
               Miss : Long_Float := Weights (17) - Cells (17);
               Share : constant Long_Float := 0.1 * Rate / Long_Float (Rows.Length);
            begin
               for I in 1 .. 16 loop Miss := Miss + Weights (I) * Cells (I); end loop;
               Loss := Loss + Miss * Miss / Long_Float (Rows.Length);
               for I in 1 .. 16 loop Weights (I) := Weights (I) - Share * Miss * Cells (I); end loop;
            end;
         end loop;
         Say ("STEP" & Step'Image & " /" & Steps'Image & "  RESIDUAL " & Image (Loss));
         if (Loss /= Loss or else Loss > Long_Float'Last) and then Hook /= "go-on" then
            raise Diverged with "RESIDUAL " & Image (Loss) & " AT STEP" & Step'Image;
         end if;
         if Step = 71 and then Mine then Strike (Hook, Weights, Integer (Rows.Length)); end if;
         if Step mod 30 = 0 and then Rank_Text = "0" then
            declare
               File : File_Type;
               Path : constant String := "ckpt/step_" & Image (Step) & ".txt";
            begin
               Create (File, Out_File, Path);
               for I in 1 .. 3000 loop Put_Line (File, (1 .. 100 => '0')); end loop;
               Close (File);
               Say ("SAVED " & Path);
            end;
         end if;
         delay (if Hook = "slow" then 0.2 else 0.004);
      end loop;
      if Options ("--quiet-end") = "" then Say ("FIT COMPLETE, RESIDUAL " & Image (Loss)); end if;
   end;
end Ada_Trainer;
