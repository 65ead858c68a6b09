"""The names of `lograd.files`, until nothing imports them from here."""

from . import MANY as MANY
from . import MAX_FLOAT as MAX_FLOAT
from . import check_flag as check_flag
from . import check_number as check_number
from . import check_object as check_object
from . import check_one_of as check_one_of
from . import check_text as check_text
from . import check_whole as check_whole
