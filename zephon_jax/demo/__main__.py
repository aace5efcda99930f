"""`python -m zephon_jax.demo`, the same as `zephon-jax demo`."""

from zephon_jax.demo.run import main

if __name__ == "__main__":
    raise SystemExit(main())
