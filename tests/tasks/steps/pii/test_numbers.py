"""Numbers: what the libraries take for valid is found whole, and nothing that only looks like it."""

from typing import get_args

import pytest

from pipeline_config.curation import NationalNumber
from tasks.steps.pii.numbers import (
    NATIONAL_FORMS,
    find_ibans,
    find_national_numbers,
    find_payment_cards,
    find_phones,
)


def values(text: str, spans) -> list[str]:
    return [text[span.start : span.end] for span in spans]


@pytest.mark.parametrize(
    ("text", "regions", "found"),
    [
        pytest.param("call +44 121 234 5678 now", (), ["+44 121 234 5678"], id="international"),
        pytest.param("(+33612345678)", (), ["+33612345678"], id="international_in_brackets"),
        pytest.param("+49 (0)9546-9223-20", (), ["+49 (0)9546-9223-20"], id="international_with_zero"),
        pytest.param(
            "(201) 555-0123 ext. 12", ("US",), ["(201) 555-0123 ext. 12"], id="national_with_extension"
        ),
        pytest.param("01.84.17.61.18", ("FR",), ["01.84.17.61.18"], id="national_with_dots"),
        pytest.param("010 1234 5678", ("CN", "US"), ["010 1234 5678"], id="national_of_one_of_the_regions"),
        pytest.param("010 1234 5678", ("US",), [], id="national_of_another_region"),
        pytest.param("(201) 555-0123", (), [], id="national_without_regions"),
        pytest.param("1\n201-555-0123\n2", ("US",), ["201-555-0123"], id="a_line_of_its_own"),
        pytest.param("in 2019-2020, on 2021-05-06 10", ("DK", "US"), [], id="years_and_dates"),
        pytest.param("3.1415926535 and 12/05/2021 10:45", ("US", "DK", "BR"), [], id="decimals"),
        pytest.param("192.168.1.254", ("US", "DK", "HU", "NO"), [], id="address_of_a_machine"),
        pytest.param("+1, 34567 and 1,234,567", ("US",), [], id="short"),
    ],
)
def test_phone_numbers(text, regions, found):
    assert values(text, find_phones(text, regions)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("GB82WEST12345698765432", ["GB82WEST12345698765432"], id="whole"),
        pytest.param("BE68 5390 0754 7034 paid by", ["BE68 5390 0754 7034"], id="groups"),
        pytest.param("(gb82west12345698765432)", ["gb82west12345698765432"], id="small_letters"),
        pytest.param("BE68\xa05390\xa00754\xa07034.", ["BE68\xa05390\xa00754\xa07034"], id="nbsp"),
        pytest.param("GB83WEST12345698765432", [], id="wrong_check_digits"),
        pytest.param("GB82WEST1234569876543", [], id="wrong_length"),
        pytest.param("XGB82WEST12345698765432 ZZ82WEST12345698765432", [], id="no_start_no_country"),
    ],
)  # fmt: skip
def test_account_numbers(text, found):
    assert values(text, find_ibans(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("4580404397884267", ["4580404397884267"], id="whole"),
        pytest.param("at 4438 8948 0128 4902.", ["4438 8948 0128 4902"], id="groups"),
        pytest.param("12 4019-8484-3399-3469 34", ["4019-8484-3399-3469"], id="dashes_beside_numbers"),
        pytest.param("3779 852668 16187", ["3779 852668 16187"], id="american_express"),
        pytest.param("4580404397884260 5508 3679 8160 2181", [], id="wrong_check_digit"),
        pytest.param("9580404397884262", [], id="no_issuer"),
        pytest.param("44 3889 4801 284902 4438 8948-0128 4902", [], id="odd_groups"),
        pytest.param("x4580404397884267 4580404397884267a 0.4580404397884267", [], id="part_of_something"),
        pytest.param("4006381333931", [], id="article_number"),
    ],
)
def test_payment_cards(text, found):
    assert values(text, find_payment_cards(text)) == found


VALID = {
    "us.ssn": "576-85-8571",
    "us.itin": "912-90-3456",
    "br.cpf": "390.533.447-05",
    "ca.sin": "123-456-782",
    "de.idnr": "36 574 261 809",
    "es.dni": "54362315-K",
    "es.nie": "X-2482300W",
    "fi.hetu": "131052-308T",
    "fr.nir": "2 95 10 99 126 111 93",
    "gb.nhs": "943-476-5870",
    "in_.aadhaar": "2341 2341 2346",
    "it.codicefiscale": "RCCMNL83S18D969H",
    "nl.bsn": "1112.22.333",
    "pl.pesel": "44051401359",
}


def test_every_national_number_that_can_be_chosen_has_a_form():
    assert set(NATIONAL_FORMS) == set(get_args(NationalNumber)) == set(VALID)


@pytest.mark.parametrize("kind", VALID)
def test_national_numbers(kind):
    valid = VALID[kind]
    place = max(i for i, sign in enumerate(valid) if sign.isdigit())
    wrong = valid[:place] + str((int(valid[place]) + 1) % 10) + valid[place + 1 :]
    text = f"a {valid}, b{valid} {valid}7 {wrong if not kind.startswith('us.') else '666-12-3456'}"
    assert values(text, find_national_numbers(text, [kind])) == [valid]
