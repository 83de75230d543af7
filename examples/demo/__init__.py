"""The demo: a parameter server and two trainers learn digits, once on each backend; see README.md."""
