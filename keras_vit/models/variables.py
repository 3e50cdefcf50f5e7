"""The variables of a model by their role in training."""

import keras

from keras_vit.layers.keras_private import all_layers

_STATE = "seed_generator_state"


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """Return the state variables of all random generators in a model, in the order of its layers."""
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(_STATE)]


def weights(model: keras.Model) -> list[keras.Variable]:
    """Return all variables of a model except the states of its random generators, which depend only on the step."""
    generators = {id(variable) for variable in seed_states(model)}
    return [variable for variable in model.variables if id(variable) not in generators]


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the moving statistics of batch norms, which a forward pass in training mode changes."""
    norms = [layer for layer in all_layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
    return [variable for norm in norms if norm.trainable for variable in (norm.moving_mean, norm.moving_variance)]
