"""Colors of pictures: the Okabe-Ito palette, safe for color blindness."""

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)
INK, MUTED, GRID = "#222222", "#666666", "#E4E4E4"
