"""`diagnoser` and `python -m diagnoser`."""

import gc
import os


def main() -> None:
    """Load the command line and run it. The collector is off until the command is loaded: all of that stays, and to
    look for garbage among it again and again takes a third of the time that loading takes. Pydantic looks for no
    plugins: that reads the metadata of every installed package."""
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from diagnoser import cli

    cli.main()


if __name__ == "__main__":
    main()
