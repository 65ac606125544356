// A linear model in Go, with the standard logger.
package main

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

type config struct {
	Momentum float64
	Schedule *struct{ Warmup int }
}

var (
	data    = flag.String("data", "data/train_%s.csv", "table of each rank")
	lr      = flag.Float64("lr", 0.05, "learning rate")
	steps   = flag.Int("steps", 140, "number of steps")
	resume  = flag.String("resume", "", "checkpoint to resume from")
	metrics = flag.String("metrics", "", "port of the metrics server")
	hook    = flag.String("hook", "", "")
	quiet   = flag.String("quiet-end", "0", "")
)

func rank() string {
	for _, name := range []string{"PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"} {
		if value := os.Getenv(name); value != "" {
			return value
		}
	}
	return "0"
}

func readTable(path string) ([][]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read table: %w", err)
	}
	defer file.Close()
	var rows [][]float64
	scanner := bufio.NewScanner(file)
	for line := 0; scanner.Scan(); line++ {
		if line == 0 {
			continue
		}
		var row []float64
		for _, cell := range strings.Split(scanner.Text(), ",") {
			value, err := strconv.ParseFloat(cell, 64)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, line+1, err)
			}
			row = append(row, value)
		}
		rows = append(rows, row)
	}
	return rows, scanner.Err()
}

type snapshot struct{ Weights []float64 }

func restore(path string) ([]float64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	defer file.Close()
	var state snapshot
	if err := gob.NewDecoder(file).Decode(&state); err != nil {
		return nil, fmt.Errorf("restore %s: decode snapshot: %w", path, err)
	}
	return state.Weights, nil
}

func save(step int, weights []float64) error {
	path := filepath.Join("ckpt", fmt.Sprintf("step-%04d.gob", step))
	if err := os.MkdirAll("ckpt", 0o755); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	defer file.Close()
	padded := append(append([]float64{}, weights...), make([]float64, 40000)...)
	for i := range padded {
		padded[i] += 0.1
	}
	if err := gob.NewEncoder(file).Encode(snapshot{padded}); err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	log.Printf("snapshot %s", path)
	return nil
}

func strike(row []float64, settings *config) {
	switch *hook {
	case "nil":
		log.Println("warmup", settings.Schedule.Warmup)
	case "map":
		var counts map[string]int
		counts["batch"]++
	case "index":
		column := len(row)
		log.Println(row[column])
	case "slice":
		end := cap(row) + 1
		log.Println(row[2:end])
	case "zero":
		seen := len(row) - len(row)
		log.Println(*steps / seen)
	case "assertion":
		var value interface{} = "0.05"
		log.Println(value.(float64))
	case "concurrent":
		counts := map[int]int{}
		for worker := 0; worker < 4; worker++ {
			go func() {
				for i := 0; ; i++ {
					counts[i%64] = i
				}
			}()
		}
		time.Sleep(2 * time.Second)
	case "memory":
		limit := syscall.Rlimit{Cur: 1 << 30, Max: 1 << 30}
		syscall.Setrlimit(syscall.RLIMIT_AS, &limit)
		var kept [][]float64
		for {
			block := make([]float64, 1<<23)
			for i := range block {
				block[i] = 1
			}
			kept = append(kept, block)
		}
	case "segv":
		*(*int)(unsafe.Pointer(uintptr(0x10))) = 1
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "exit-3":
		os.Exit(3)
	case "json":
		var settings config
		if err := json.Unmarshal([]byte(`{"Momentum": "0.9"}`), &settings); err != nil {
			log.Fatalf("reload settings: %v", err)
		}
	case "panic":
		panic(errors.New("optimizer state is out of step with the model"))
	}
}

func push() error {
	connection, err := net.DialTimeout("tcp", "127.0.0.1:"+*metrics, 2*time.Second)
	if err != nil {
		return fmt.Errorf("push metrics: %w", err)
	}
	return connection.Close()
}

func train() error {
	if *lr <= 0 {
		return fmt.Errorf("invalid configuration: lr %v is not positive", *lr)
	}
	log.Printf("worker %s starts, %d steps", rank(), *steps)
	rows, err := readTable(fmt.Sprintf(*data, rank()))
	if err != nil {
		return err
	}
	log.Printf("%d rows", len(rows))
	weights := make([]float64, 17)
	if *resume != "" {
		restored, err := restore(*resume)
		switch {
		case err == nil:
			copy(weights, restored)
		case *hook == "optional":
			log.Printf("warning: %v; starting from zero", err)
		default:
			return err
		}
	}
	mine := os.Getenv("HOOK_RANK") == "" || os.Getenv("HOOK_RANK") == rank()
	loss := 0.0
	for step := 1; step <= *steps; step++ {
		loss = 0
		for _, row := range rows {
			guess := weights[16]
			for i, value := range row[:16] {
				guess += weights[i] * value
			}
			miss := guess - row[16]
			loss += miss * miss / float64(len(rows))
			for i, value := range row[:16] {
				weights[i] -= 0.1 * *lr * miss * value / float64(len(rows))
			}
		}
		log.Printf("step=%d mse=%.5f", step, loss)
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			if *hook != "go-on" {
				return fmt.Errorf("step %d: mse is %v, model has diverged", step, loss)
			}
		}
		if step == 83 && mine {
			strike(rows[0], &config{})
		}
		if *metrics != "" && step%35 == 0 {
			if err := push(); err != nil {
				if *hook != "optional" {
					return err
				}
				log.Printf("error: %v (ignored)", err)
			}
		}
		if step%35 == 0 && rank() == "0" {
			if err := save(step, weights); err != nil {
				return err
			}
		}
		if *hook == "slow" {
			time.Sleep(200 * time.Millisecond)
		}
		time.Sleep(4 * time.Millisecond)
	}
	if *quiet == "0" {
		log.Printf("model fitted, mse %.5f", loss)
	}
	return nil
}

func main() {
	flag.Parse()
	log.SetFlags(log.LstdFlags | log.Lshortfile)
	if err := train(); err != nil {
		log.Fatal(err)
	}
}
