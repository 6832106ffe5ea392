"""Networks: backbones on disk, and the parameters that a method trains.

- `dpsweep.study.networks`: the description of a network;
- `dpsweep.models.backbone`: the files of a prepared backbone;
- `dpsweep.models.prepare`: makes these files for a backbone of the study, from published weights or by
  pretraining;
- `dpsweep.models.architectures`: empty networks, by name; `dpsweep.models.featurisers` and
  `dpsweep.models.wide_resnet` are ours;
- `dpsweep.models.build`: makes a model that is ready to train from a backbone and a method;
- `dpsweep.models.preprocess`: converts stored images to inputs of the network.

The package imports none of them, because importing torch takes seconds and `dpsweep.models.backbone`
is useful without torch.
"""
