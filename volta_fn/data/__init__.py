"""Datasets from files and arrays, transforms, and a loader of batches.

`dataset` has sequences of examples and their splits, changes examples or batches and encodes text, `files` reads IDX, CIFAR and CSV files,
and `loader` shuffles and batches a dataset and prefetches batches to a device, by threads or by processes; `progress_bar`
shows how far a loop is.

>>> import numpy as np, volta_fn as vf
>>> points = vf.data.ArrayDataset(np.eye(4, dtype=np.float32), np.array([0, 1, 1, 0], np.int32))
>>> for features, labels in vf.data.DataLoader(points, batch_size=3):
...     print(features.shape, labels)
(3, 4) [0 1 1]
(1, 4) [0]
"""

from volta_fn import advice as _advice
from volta_fn import lazy_imports as _lazy_imports
from volta_fn.data.dataset import ArrayDataset as ArrayDataset
from volta_fn.data.dataset import CharDataset as CharDataset
from volta_fn.data.dataset import ConcatDataset as ConcatDataset
from volta_fn.data.dataset import Dataset as Dataset
from volta_fn.data.dataset import Examples as Examples
from volta_fn.data.dataset import Mapped as Mapped
from volta_fn.data.dataset import RandomTransform as RandomTransform
from volta_fn.data.dataset import Subset as Subset
from volta_fn.data.dataset import Vocabulary as Vocabulary
from volta_fn.data.dataset import compose as compose
from volta_fn.data.dataset import gather as gather
from volta_fn.data.dataset import normalize as normalize
from volta_fn.data.dataset import one_hot as one_hot
from volta_fn.data.dataset import random_crop as random_crop
from volta_fn.data.dataset import random_horizontal_flip as random_horizontal_flip
from volta_fn.data.dataset import random_split as random_split
from volta_fn.data.dataset import stack as stack
from volta_fn.data.dataset import to_float as to_float
from volta_fn.data.files import CIFAR10 as CIFAR10
from volta_fn.data.files import CSV as CSV
from volta_fn.data.files import MNIST as MNIST
from volta_fn.data.files import read_idx as read_idx
from volta_fn.data.files import read_text as read_text
from volta_fn.data.loader import DataLoader as DataLoader
from volta_fn.data.loader import WorkerInfo as WorkerInfo
from volta_fn.data.loader import worker_info as worker_info
from volta_fn.data.progress_bar import ProgressBar as ProgressBar
from volta_fn.data.progress_bar import progress as progress

__dir__ = _lazy_imports.directory(__name__, ".py")
__getattr__ = _advice.guard(__name__)
