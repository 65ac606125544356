"""`diagnoser` and `python -m diagnoser`."""

import gc


def main() -> None:
    """Loads the command line and runs it. The collector looks at none of what is loaded: it all stays, and looking for
    garbage among it again and again takes a third of the time that loading takes."""
    gc.disable()
    from diagnoser import cli

    gc.freeze()
    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
