"""What things cost: steps, cells, the demo, planning, calibration, memory."""
