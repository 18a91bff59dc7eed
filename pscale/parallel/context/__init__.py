"""Context parallelism: every sequence cut over the ranks of `cp`.

Each form is a file of its name and declares itself as a `Form`. `layout` says which tokens lie where.
"""
