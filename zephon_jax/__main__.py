"""`python -m zephon_jax` is the command `zephon-jax`."""

from zephon_jax.cli import main

raise SystemExit(main())
