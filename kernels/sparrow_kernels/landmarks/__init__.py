"""Landmarks: one summary of a full page's keys per KV head."""

from sparrow_kernels.landmarks.naive import landmark_rows, page_landmarks

__all__ = ["landmark_rows", "page_landmarks"]
