"""Line searches: backtracking, and zoom for the strong Wolfe conditions."""
