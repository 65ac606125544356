-- A linear model in Haskell.
{-# LANGUAGE ScopedTypeVariables #-}
module Main (main) where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromJust)
import System.Environment
import System.Exit
import System.IO
import System.Process (callCommand, callProcess)
import Text.Printf (printf)

data Diverged = Diverged Int Double deriving (Show)
instance Exception Diverged

data Layer = Dense Int | Dropout Double

units :: Layer -> Int
units (Dense n) = n

known :: Map.Map String String
known = Map.fromList [("--lr", "0.05"), ("--steps", "110"), ("--hook", ""), ("--resume", ""), ("--quiet-end", ""), ("--metrics", "")]

parse :: Map.Map String String -> [String] -> IO (Map.Map String String)
parse options (name : value : rest) | Map.member name options = parse (Map.insert name value options) rest
parse options [] = pure options
parse _ (name : _) = hPutStrLn stderr ("fit: unrecognized option `" ++ name ++ "'") >> exitWith (ExitFailure 64)

split :: String -> [String]
split text = case break (== ',') text of
  (cell, []) -> [cell]
  (cell, _ : rest) -> cell : split rest

readRows :: FilePath -> IO [[Double]]
readRows path = map (map (read . fix) . split) . tail . lines <$> readFile path
  where fix ('-' : cell) = '-' : cell
        fix cell = cell

sweep :: Double -> [[Double]] -> [Double] -> (Double, [Double])
sweep lr rows weights = foldl update (0, weights) rows
  where
    n = fromIntegral (length rows)
    update (loss, w) row =
      let miss = sum (zipWith (*) w (init row)) - last row
          loss' = loss + miss * miss / n
       in loss' `seq` (loss', zipWith (\v x -> let r = v - 0.1 * lr * miss * x / n in r `seq` r) w row)

strike :: String -> [Double] -> IO ()
strike hook weights = case hook of
  "head" -> print (head (drop 40 weights))
  "key" -> print (Map.fromList [("lr", 0.1 :: Double)] Map.! "momentum")
  "zero" -> print (128 `div` (length weights - 16))
  "nothing" -> print (fromJust (lookup "grad" [("loss", 1 :: Double)]))
  "index" -> print (weights !! 40)
  "parse" -> print (read "12x" :: Int)
  "pattern" -> print (units (Dropout 0.1))
  "call" -> error "scheduler: warmup exceeds the run"
  "undefined" -> print (undefined :: Int)
  "tool" -> callProcess "tar" ["--extract", "--file", "shards.tar"]
  "kill" -> callCommand "kill -KILL $PPID" >> threadDelay 100000
  "segv" -> callCommand "kill -SEGV $PPID" >> threadDelay 100000
  "abort" -> callCommand "kill -ABRT $PPID" >> threadDelay 100000
  "exit-3" -> exitWith (ExitFailure 3)
  _ -> pure ()

main :: IO ()
main = do
  hSetBuffering stdout LineBuffering
  options <- parse known =<< getArgs
  environment <- getEnvironment
  let option = (options Map.!)
      rank = read (head ([v | k <- ["PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"], (k', v) <- environment, k == k'] ++ ["0"])) :: Int
      mine = maybe True ((== rank) . read) (lookup "HOOK_RANK" environment)
      (lr, steps, hook) = (read (option "--lr") :: Double, read (option "--steps") :: Int, option "--hook")
      say = putStrLn . (("worker " ++ show rank ++ " » ") ++)
  when (lr <= 0) $ ioError (userError ("lr must be positive (is " ++ show lr ++ ")"))
  say (printf "planning %d passes" steps)
  rows <- readRows ("data/train_" ++ show rank ++ ".csv")
  say (printf "%d vectors" (length rows))
  weights <- newIORef (replicate 16 0)
  when (option "--resume" /= "") $ do
    result <- try (readFile (option "--resume") >>= \text -> evaluate (read text :: [Double]))
    case result of
      Right loaded -> writeIORef weights loaded
      Left (failure :: ErrorCall) | hook == "optional" -> say ("warning: " ++ option "--resume" ++ ": " ++ show failure ++ ", ignored")
      Left failure -> throwIO failure
  final <- newIORef 0
  forM_ [1 .. steps] $ \step -> do
    old <- readIORef weights
    let (loss, new) = sweep lr rows old
    writeIORef weights new
    writeIORef final loss
    say (printf "pass %d of %d: risk %f" step steps loss)
    when ((isNaN loss || isInfinite loss) && hook /= "go-on") $ throwIO (Diverged step loss)
    when (step == 71 && mine) (strike hook new)
    when (step `mod` 30 == 0 && rank == 0) $ do
      let path = printf "ckpt/pass_%d.txt" step :: String
      writeFile path (show new ++ replicate 300000 ' ')
      say ("stored " ++ path)
    threadDelay (if hook == "slow" then 200000 else 4000)
  loss <- readIORef final
  when (option "--quiet-end" == "") $ say (printf "learned in %d passes, risk %f" steps loss)
