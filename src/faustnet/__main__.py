"""Entry point of the command `faustnet` and of `python -m faustnet`."""

from faustnet.system.interrupts import importing


def main() -> None:
    with importing():
        from faustnet.cli import main as run
    run()


if __name__ == "__main__":
    main()
