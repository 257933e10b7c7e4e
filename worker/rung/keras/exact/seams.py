"""Private interfaces of Keras that exact resuming needs, as data; what uses them is beside it."""

import keras

from rung.training.introspection.seams import AddOn, Kind, Seam

_PLACE = "a run that resumes does not find its place in the training data"
_HOOKS = "callbacks act again on batches that were trained before, and their states are lost"
_ALWAYS = (
    Seam(
        "keras:Model.fit",
        Kind.NAMES,
        "a run that resumes begins at epoch 0, whatever was trained before",
        ("_initial_epoch",),
    ),
    Seam("keras:Model.fit", Kind.LOCALS, _PLACE, ("epoch_iterator", "validation_data", "x")),
    Seam(
        "keras.src.trainers.epoch_iterator:EpochIterator.__init__",
        Kind.NAMES,
        _PLACE,
        ("data_adapter",),
    ),
    Seam(
        "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
        Kind.NAMES,
        "an epoch that is a piece of the data is not noticed, and goes on elsewhere",
        ("steps_per_epoch",),
    ),
    Seam(
        "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
        Kind.NAMES,
        "what a PyDataset draws between epochs is another thing in a run that resumes",
        ("on_epoch_begin",),
    ),
    Seam(
        "keras.src.trainers.epoch_iterator:EpochIterator._enumerate_iterator",
        Kind.NAMES,
        "what a PyDataset draws between epochs is another thing in a run that resumes",
        ("on_epoch_end",),
    ),
    Seam(
        "keras.src.trainers.data_adapters.data_adapter:DataAdapter.num_batches",
        Kind.ATTRIBUTE,
        "an epoch that is a piece of the data is not noticed, and goes on elsewhere",
    ),
    Seam(
        "keras.src.trainers.data_adapters.data_adapter:DataAdapter.batch_size",
        Kind.ATTRIBUTE,
        "a batch of another size than global_batch_size is not noticed",
    ),
    Seam(
        "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter.__init__",
        Kind.NAMES,
        "what a PyDataset draws between epochs is another thing in a run that resumes",
        ("py_dataset",),
    ),
    Seam(
        "keras.callbacks:CallbackList.set_model",
        Kind.LOCALS,
        "a callback behind Rung's is not noticed, and its state at a checkpoint is lost",
        ("self",),
    ),
    Seam("keras.callbacks:CallbackList.on_train_begin", Kind.NAMES, _HOOKS, ("callbacks",)),
    Seam("keras.callbacks:CallbackList.on_train_batch_begin", Kind.NAMES, _HOOKS, ("callbacks",)),
    Seam("keras.callbacks:CallbackList.on_epoch_end", Kind.NAMES, _HOOKS, ("callbacks",)),
    Seam(
        "keras.src.random.seed_generator:global_seed_generator",
        Kind.ATTRIBUTE,
        "what draws without a seed, such as dropout, draws other numbers in a run that resumes",
    ),
    Seam(
        "keras:Model._flatten_layers",
        Kind.CALL,
        "running means differ from slot to slot",
        ("include_self", "recursive"),
    ),
    Seam(
        "keras.src.layers.layer:Layer._initialize_tracker",
        Kind.NAMES,
        "running means differ from slot to slot",
        ("_non_trainable_variables",),
    ),
)
_ON_TENSORFLOW = (
    Seam(
        "keras.src.trainers.trainer:Trainer._symbolic_build",
        Kind.CALL,
        "the running metrics of an epoch are lost",
        ("iterator", "data_batch"),
    ),
    Seam(
        "keras.src.trainers.data_adapters.tf_dataset_adapter:TFDatasetAdapter.__init__",
        Kind.NAMES,
        _PLACE,
        ("_dataset",),
    ),
    Seam(
        "tensorflow.python.data.ops.iterator_ops:OwnedIterator._create_iterator",
        Kind.NAMES,
        _PLACE,
        ("_dataset",),
    ),
)

ADD_ON = AddOn(
    framework="Keras",
    module="keras",
    package="keras",
    lowest="3.8",
    newest="3.15",
    without="a run resumes at the beginning of the epoch in which its last checkpoint was made",
    seams=_ALWAYS + (_ON_TENSORFLOW if keras.backend.backend() == "tensorflow" else ()),
)
