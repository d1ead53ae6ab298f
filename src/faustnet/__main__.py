"""Entry point of the command `faustnet` and of `python -m faustnet`."""

from faustnet.system.interrupts import end_imports_on_interrupt


def main() -> None:
    end_imports_on_interrupt()
    from faustnet.cli import main as run

    run()


if __name__ == "__main__":
    main()
