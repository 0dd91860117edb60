"""The paged engine: pages shared without copies, preempted to host memory, decoded in graphs."""
