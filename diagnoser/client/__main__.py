import sys

from diagnoser.client.cli import main

sys.exit(main(sys.argv[1:]))
