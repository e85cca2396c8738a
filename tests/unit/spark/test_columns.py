"""The columns are those of Spark's own connector; a query may select some of them."""

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from ottla import Records
from ottla.errors import ConfigError
from ottla.spark.columns import full_schema, names_of, wanted_columns


def test_headers_are_there_only_when_asked_for() -> None:
    assert full_schema(True).fieldNames() == [*full_schema(False).fieldNames(), "headers"]
    assert wanted_columns(full_schema(True)) == tuple(full_schema(True).fieldNames())


def test_the_record_layer_makes_just_these_types() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = full_schema(True)
    assert Records.empty().to_arrow(wanted_columns(schema)).schema.equals(to_arrow_schema(schema, timezone="UTC"))


def test_fewer_columns_in_another_order() -> None:
    assert wanted_columns(StructType([StructField("offset", LongType()), StructField("key", BinaryType())])) == ("offset", "key")


def test_names_match_without_regard_to_case() -> None:
    columns = wanted_columns(StructType([StructField("VALUE", BinaryType()), StructField("timestamptype", IntegerType())]))
    assert columns == ("VALUE", "timestamptype")
    assert names_of(columns) == ("value", "timestampType")


@pytest.mark.parametrize(("again", "words"), [("value", "as value"), ("VALUE", "as value and VALUE")])
def test_a_column_that_is_named_twice_is_refused(again: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"column value is named twice in the schema, {words}"):
        wanted_columns(StructType([StructField("value", BinaryType()), StructField(again, BinaryType())]))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("colour", StringType()), "no column 'colour'"),
        (StructField("key", StringType()), "key is binary, not string"),
        (StructField("key", BinaryType(), nullable=False), "NOT NULL"),
    ],
)
def test_a_column_that_is_not_ours_is_refused(field: StructField, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        wanted_columns(StructType([field]))
