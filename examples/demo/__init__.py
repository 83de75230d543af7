"""A parameter server and two trainers learn digits over one backend after another; see README.md."""
