"""The flat policy: the same network and training over all six raw knobs, without masks or fill."""
