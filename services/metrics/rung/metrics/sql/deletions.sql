-- By trial, the time before which its lines were deleted.
SELECT trial_id, max(before_ms) AS before_ms
FROM deletions
GROUP BY trial_id
ORDER BY trial_id
