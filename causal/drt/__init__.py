"""Why some runs are slow: traces clustered by cost, and a tree over functions that tells the clusters apart.

The method is that of discriminant regression trees (Tizpaz-Niari, Cerny, Chang and Trivedi, "Differential
Performance Debugging With Discriminant Regression Trees", AAAI 2018). A trace is one run or request: inputs (its
size), an output (its time) and internals (how often it called each function). First the traces are clustered into
lines, output against inputs; then a decision tree over the internals predicts the line. Modules, in the order in
which data passes through them:

    reading, sparse_reading   files to Traces (traces.py), or a CausalError that names the row and column
    features                  columns worth looking at: constants dropped, duplicates merged
    atoms                     traces with identical internals become one unit of clustering
    shapes, noise             what "a line" and "close to it" mean for these data
    lines, starts, ladder     K-linear clustering, and the choice of K; spectral.py is the alternative
    relabel                   labels made consistent where lines meet
    growing, optimal, tree    the tree
    model, validation         the whole, and what it is worth on traces it has not seen
    estimators                the same for scikit-learn users

Nothing here prints, and nothing needs root or bcc.
"""
