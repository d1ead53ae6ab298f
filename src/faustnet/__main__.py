"""Entry point of the command `faustnet` and of `python -m faustnet`."""

from faustnet.system.interrupts import end_at_once_on_interrupt, end_imports_on_interrupt


def main() -> None:
    end_imports_on_interrupt()
    from faustnet.cli import main as run

    try:
        run()
    finally:
        end_at_once_on_interrupt()


if __name__ == "__main__":
    main()
