"""Semantic segmentation of ADE20K with a linear head on frozen features: the protocols of DINOv2 and DINOv3.

Papers: "DINOv2", https://arxiv.org/abs/2304.07193, section 7.4; "DINOv3", https://arxiv.org/abs/2508.10104, section 6.1

    keras-vit train --config=ade20k --workdir=runs/ade20k
    keras-vit train --config=ade20k:dinov2,ViT_S14 --workdir=runs/ade20k_s14
    keras-vit train --config=ade20k:dinov3,ViT_S16 --workdir=runs/ade20k_dinov3 --weights=dinov3_vits16
    keras-vit plan --config=ade20k:dinov3

The data are in the folder ADEChallengeData2016 of the scene parsing challenge. The masks number the classes from 1;
pixels with the value 0 are ignored. `--weights` sets other weights. The weights of DINOv3 require a license and are not
in the list of published weights: pass their folder.

- The head is a batch norm and a linear layer on the last block, after the final norm. DINOv3 drops 10% of the channels.
- Images are scaled by a factor of 0.5 to 2, cropped to 512 pixels and flipped at random. DINOv2 pads the crops to a
  whole number of patches; this recipe uses crops of 518 pixels instead. DINOv2 also changes colors, and draws a crop
  again if one class covers more than 75% of it. This recipe does neither.
- AdamW trains for 40,000 steps of 16 images. Batch norms use the statistics of one device, not of all devices.
- After the last step, the evaluator slides windows over images whose smaller side has the size of a crop. During
  training, `eval_miou` is measured on whole, resized images.

Published: mIoU 44.3% for S/14, 47.3% for B/14, 47.7% for L/14 of DINOv2; 47.0% for S/16, 51.8% for B/16 and 54.9% for
L/16 of DINOv3. Not run here.
Cost: 0.37 TPUv3-core-days for B/14 by `keras-vit plan`; a third of this if the encoder's backward pass is omitted.
Smaller machines: `--config.optim.accumulation_steps=4`, and `--steps=4000` for a first impression.
"""

from keras_vit import recipe
from keras_vit.util import checks

from . import common

SOURCE = "folder:ADEChallengeData2016/images#masks=ADEChallengeData2016/annotations&classes=150&label_offset=-1"
NORM = "value_norm((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))"


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the protocol, `dinov2` or `dinov3`, and the variant."""
    protocol, variant = common.arguments(arguments, "dinov2", "")
    is_newer = checks.choice("protocol", protocol, ("dinov2", "dinov3")) == "dinov3"
    variant = common.variant(variant or ("ViT_B16" if is_newer else "ViT_B14"))
    size = 512 if is_newer else 518
    return recipe.Recipe(
        total_steps=40_000,
        deterministic=False,
        task=recipe.Segmentation(dropout_rate=0.1 if is_newer else 0.0),
        adapt="head",
        log_every=50,
        eval_every=4_000,
        checkpoint_every=1_000,
        evaluators=(f"segmentation(stride=341, pp='decode|resize_small({size})|{NORM}', every=40_000)",),
        model=recipe.Model(variant, size, None if is_newer else "dinov2", head="reset"),
        data=recipe.Data(
            source=SOURCE,
            eval_split="validation",
            pp_train=f"decode|scaled_crop({size})|flip_lr|{NORM}",
            pp_eval=f"decode|resize({size})|{NORM}",
            batch_size=16,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=1e-3,
            schedule=recipe.Schedule("cosine" if is_newer else "linear", warmup_steps=1_500),
            weight_decay=1e-3 if is_newer else 1e-4,
            clip_norm=35.0 if is_newer else 0.0,
        ),
    )
