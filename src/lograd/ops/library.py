"""Names that other packages import from here; `registry`, `layouts` and `contracts` define them."""

from .contracts import COUNTS as COUNTS
from .contracts import FLOAT_TYPES as FLOAT_TYPES
from .layouts import dense as dense
from .layouts import flat as flat
from .layouts import in_type as in_type
from .registry import call as call
from .registry import library as library
from .registry import register as register
from .registry import transforming as transforming
from .registry import watched as watched
