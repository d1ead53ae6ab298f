"""Data sets of images and texts: built-in ones by name, the user's own by path.

The names are imported when they are first used: methods need `faustnet.data.sources`, but no file formats.
"""

from typing import TYPE_CHECKING

from faustnet._lazy import lazy_attributes

if TYPE_CHECKING:
    from faustnet.data.augmentation import Augmentation
    from faustnet.data.download import data_folder
    from faustnet.data.findings import Finding, check_data
    from faustnet.data.image_file import image_files, image_pixels, read_image
    from faustnet.data.image_folder import read_classes
    from faustnet.data.images import DataSet, Images, ImageSource, Scaling
    from faustnet.data.loading import DATASETS, TEXT_SETS, absolute_name, load_data, make_shards
    from faustnet.data.memory import MEMORY, data_digest, data_in_memory
    from faustnet.data.quick_checks import obvious_findings
    from faustnet.data.stored_pixels import STREAM, StoredPixels
    from faustnet.data.text import TextSettings
    from faustnet.data.token_file import write_tokens
    from faustnet.data.tokens import Tokeniser

_MODULES = {
    "download": ["data_folder"],
    "findings": ["Finding", "check_data"],
    "image_file": ["image_files", "image_pixels", "read_image"],
    "image_folder": ["read_classes"],
    "augmentation": ["Augmentation"],
    "images": ["DataSet", "Images", "ImageSource", "Scaling"],
    "loading": ["DATASETS", "TEXT_SETS", "absolute_name", "load_data", "make_shards"],
    "memory": ["MEMORY", "data_digest", "data_in_memory"],
    "quick_checks": ["obvious_findings"],
    "stored_pixels": ["STREAM", "StoredPixels"],
    "text": ["TextSettings"],
    "token_file": ["write_tokens"],
    "tokens": ["Tokeniser"],
}

__all__ = [
    "DATASETS",
    "MEMORY",
    "STREAM",
    "TEXT_SETS",
    "Augmentation",
    "DataSet",
    "Finding",
    "ImageSource",
    "Images",
    "Scaling",
    "StoredPixels",
    "TextSettings",
    "Tokeniser",
    "absolute_name",
    "check_data",
    "data_digest",
    "data_folder",
    "data_in_memory",
    "image_files",
    "image_pixels",
    "load_data",
    "make_shards",
    "obvious_findings",
    "read_classes",
    "read_image",
    "write_tokens",
]

__getattr__ = lazy_attributes(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
)
