"""The tests' modules are beside each other; the workers import them too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
