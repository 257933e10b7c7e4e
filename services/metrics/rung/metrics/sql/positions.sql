-- Up to where each partition is stored.
SELECT topic, partition, max(position) AS stored
FROM positions
GROUP BY topic, partition
ORDER BY topic, partition
