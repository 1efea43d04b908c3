"""Rows that name the environment in which their question is played."""

import pytest

from outdo.config.file import load
from outdo.data.splits import load_questions
from outdo.utils.errors import UserError

BY_ROW = (
    'environment={name = "by_row", environments = {'
    'calculator = {name = "tools", functions = "examples.small_models.calculator:calc"}, '
    'game = "examples.small_models.guessing:Game"}}'
)


def questions(path, *settings):
    return load_questions(load(None, ["model=m", f"data.path={path}", BY_ROW, *settings]))


def row(number, **more):
    return {"question": f"{number}?", "answer": "1", **more}


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_it_is_said_how_many_questions_each_environment_has(streaming, written):
    path = written([row(1, environment="game"), row(2, environment="game"), row(3)])
    notes = questions(f'{{path = "{path}", streaming = {streaming}}}').notes
    assert 'environment: questions of each, by the column "environment": calculator 0, game 2; one answer 1' in notes


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_row_whose_environment_the_recipe_does_not_have_is_refused(streaming, written):
    path = written([row(1, environment="game"), row(2, environment="calculater"), row(3, environment=7)])
    with pytest.raises(UserError) as refused:
        questions(f'{{path = "{path}", streaming = {streaming}}}')
    found = "\n".join(refused.value.problems)
    assert 'row 2: column "environment" names an environment "calculater" that the recipe does not have' in found
    assert "did you mean calculator?" in found
    assert "row 3:" in found
    assert "expected calculator, game, or nothing" in found


def test_a_column_that_names_no_environment_is_refused(written):
    path = written([row(1, enviroment="game"), row(2)])
    with pytest.raises(UserError, match=r'no question names .* in a column "environment"; did you mean enviroment\?'):
        questions(path)


def test_a_question_that_nothing_rewards_is_refused(written):
    path = written([row(1, environment="game"), row(2)])
    with pytest.raises(UserError, match=r'question 2 names no environment .* rewards = "environment" gives it none'):
        questions(path, "rewards=environment")
