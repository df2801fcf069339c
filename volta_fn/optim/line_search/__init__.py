"""Line searches: step sizes with a sufficiently low loss.

`backtracking` shortens the step until the loss has decreased enough, `zoom` searches for the strong Wolfe conditions; `common` holds
what they share, and `value_and_grad_from_state`.
"""
