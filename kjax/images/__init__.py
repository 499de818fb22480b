"""From photographs to matches: keypoints, their patches, descriptors and matches."""
