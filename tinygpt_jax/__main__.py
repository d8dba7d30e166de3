from tinygpt_jax.cli import main

raise SystemExit(main())
