"""`diagnoser` and `python -m diagnoser`."""

import gc


def main() -> None:
    """Load the command line and run it. The collector is off until the command is loaded: all of that stays, and to
    look for garbage among it again and again takes a third of the time that loading takes."""
    gc.disable()
    from diagnoser import cli

    cli.main()


if __name__ == "__main__":
    main()
