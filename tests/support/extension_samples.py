"""Values of the types of extensions that come with every server, and of those that may be there: pgvector, PostGIS."""

EXTENSION_SAMPLES: dict[str, list[str]] = {
    "citext": ["", "MiXeD", "ä€😀"],
    "citext[]": ["{A,b,NULL}"],
    "hstore": [
        "",
        "a=>1",
        'a=>1,bb=>NULL,"a b"=>"quote \\" backslash \\\\"',
        '""=>""',
        "ä=>€",
        ",".join(f"k{n}=>v{n}" for n in range(300)),
    ],
    "hstore[]": ['{"\\"a\\"=>\\"1\\"",NULL}'],
    "ltree": ["", "Top", "Top.Science.Astronomy", "a_1." + "x" * 200 + ".b", ".".join(["abcdef"] * 60)],
    "ltree[]": ["{a.b,NULL,c}"],
    "cube": ["1", "(1,2,3)", "(1,2),(3,4)", "(0.1,-1e20)", "(1,2),(1,2)", "()"],
    "cube[]": ['{"(1, 2)",NULL}'],
}

VECTOR_SAMPLES: dict[str, list[str]] = {
    "vector": ["[1,2,3]", "[0.1,-1e-7,3.4e38]", "[" + ",".join(str(n / 3) for n in range(200)) + "]"],
    "vector(2)": ["[1,-0]"],
    "vector[]": ['{"[1,2]",NULL}'],
    "halfvec": ["[1,2,3]", "[0.1,65504,6e-8]"],
    "sparsevec": ["{1:1.5,3:-2}/5", "{}/3"],
}
