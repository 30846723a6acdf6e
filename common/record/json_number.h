// The one rule for numbers in JSON, which has none that are not finite: those are the texts "NaN",
// "Infinity" and "-Infinity", as protobuf's mapping of doubles writes them, so that a loss that
// became NaN never looks like one that was not measured, which is null. Reading them as a number,
// e.g. with float() of Python, gives the value back.
//
// The page's API has null instead, because the page calculates with numbers and draws them, and a
// flag or a count beside each that says how many were not finite.
#pragma once

#include <cmath>

#include "nlohmann/json.hpp"

namespace nsa::record {

template <typename Json = nlohmann::ordered_json>
Json JsonNumber(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "Infinity" : "-Infinity";
}

// For the page's API, and where NaN says that there is no value.
template <typename Json = nlohmann::ordered_json>
Json JsonOrNull(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace nsa::record
