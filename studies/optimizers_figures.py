"""The table of optimizers.yaml, which has one batch size and one clipping bound."""

from dpsweep.figures import OptimizerTable, table


@table("Optimizers")
def tab_optimizers() -> OptimizerTable:
    """Gain of other optimizers over DP-Adam, each at its own learning rate."""
    return OptimizerTable(
        caption="What other optimizers gain over DP-Adam at the same ε, after 2 and 8 epochs at one batch "
        "size and clipping bound; each optimizer has its own learning rate."
    )
