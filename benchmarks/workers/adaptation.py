"""Fine-tuning steps with ten classes, for all weights or LoRA: `adaptation.py SYSTEM WORK`.

Weights are random and images are noise. The task of the work is the argument of `keras_vit.adapt`. Each step uses AdamW
with clipped gradients in float32. The note contains the number of trainable weights.
"""

from models import CLIP
from worker import Step, Work, serve

CLASSES, RANK, ALPHA, LEARNING_RATE = 10, 8, 16, 1e-3
# Class in transformers, and sizes: patch size, width, heads.
MODELS = {"ViT-B/16": ("ViT", 16, 768, 12), "ViT-S/14": ("Dinov2", 14, 384, 6)}


def keras_vit(work: Work) -> Step:
    """Return a step of this package's training loop."""
    import tensorflow as tf

    from keras_vit import recipe
    from keras_vit.training.tf.state import TrainState
    from keras_vit.training.tf.step import TrainStep

    run = recipe.Recipe(
        total_steps=1_000_000,
        adapt=work.task,
        model=recipe.Model(work.model, work.image_size, arguments=work.arguments),
        optim=recipe.Optim("adamw", LEARNING_RATE, clip_norm=CLIP),
    )
    images, labels = _examples(work)
    batch = tf.constant(images), tf.one_hot(labels, CLASSES)
    state = TrainState(recipe.build_model(run, CLASSES), run)
    step = TrainStep(state, run, lambda batch, step, replica: batch, work.batch)
    train = tf.function(
        lambda: tf.distribute.get_strategy().run(step, args=(batch, tf.constant(0, tf.int64))), autograph=False
    )
    trained = sum(weight.shape.num_elements() for weight in state.trained)

    def measured():
        tf.nest.map_structure(lambda value: value.numpy(), train())
        return {"note": f"{trained:,} trained"}

    return measured


def transformers(work: Work) -> Step:
    """Return a training step of Hugging Face's model of the same size."""
    return _torch_step(work, _transformers_model(work))


def peft(work: Work) -> Step:
    """Return a training step of Hugging Face's model with peft's LoRA for queries and values."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    return _torch_step(work, get_peft_model(_transformers_model(work), config))


def _examples(work):
    import numpy as np

    generator = np.random.default_rng(0)
    images = generator.uniform(-1, 1, (work.batch, work.image_size, work.image_size, 3)).astype("float32")
    return images, generator.integers(0, CLASSES, work.batch)


def _transformers_model(work):
    import transformers

    name, patch, width, heads = MODELS[work.model]
    sizes = {"patch_size": patch, "hidden_size": width, "num_attention_heads": heads, "image_size": work.image_size}
    config = getattr(transformers, f"{name}Config")(**sizes, intermediate_size=4 * width, num_labels=CLASSES)
    return getattr(transformers, f"{name}ForImageClassification")(config)


def _torch_step(work, model):
    import torch

    images, labels = _examples(work)
    images, labels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    model.train()

    def train():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        loss.item()
        return {"note": f"{sum(parameter.numel() for parameter in trained):,} trained"}

    return train


if __name__ == "__main__":
    serve({system.__name__: system for system in (keras_vit, transformers, peft)})
