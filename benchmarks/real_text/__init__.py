"""Populations of real text by author, made from public git checkouts.

    python -m benchmarks.real_text en_us --mirror MIRROR --debs DEBS --key-file key --output real/en_us

MIRROR has the checkouts that `SOURCES` names, each as `<owner>+<name>`; DEBS has the unpacked Debian packages of
`whitelist.PACKAGES`. Nothing is downloaded. The command writes `users.parquet`, `supplement.txt` and `whitelist.txt`,
the three inputs of `fedgram run`. docs/data.md describes the sources, their licences and the steps.

checkouts           files of a commit
self_dialogue, gitter, uol, essay_br, camara        one reader per source of users' text
cleaning            characters, addresses and names, sentences
word_frequencies    how frequent a word is in a language, and whether a line reads as that language
users               from messages to a population: filters, pseudonyms, splits
supplement          one reader per source of the supplement, and its filters
spelling, whitelist the words that devices may report
"""
