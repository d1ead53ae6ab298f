from faustnet.cli import main

main()
