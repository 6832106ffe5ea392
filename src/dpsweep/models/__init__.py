"""Networks: backbones on disk, and which of their parameters a method trains.

- `dpsweep.models.architecture`: which network it is, before there is one;
- `dpsweep.models.backbone`: the files of a prepared backbone;
- `dpsweep.models.prepare`: one configured backbone to such files (`dpsweep.models.weights` takes
  published weights, `dpsweep.models.demo_pretraining` trains those of the demo);
- `dpsweep.models.architectures`: empty networks, by name;
- `dpsweep.models.build`: a backbone and a method to a model that is ready to train;
- `dpsweep.models.preprocess`: stored images to what the network takes.

The package itself imports none of them: torch takes seconds, and `dpsweep.models.backbone` is
useful without it.
"""
