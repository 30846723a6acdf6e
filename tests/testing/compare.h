// Compares arrays and names the worst element by its coordinates:
//   o[b=1,t=37,a=3,c=12]: 0.4180 vs 0.4375, 2.5x the bound of 0.0078
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace nsa::testing {

// Names and sizes of an array's dimensions, outermost first: {{"b", 2}, {"t", 64}}.
using Dims = std::vector<std::pair<std::string, int64_t>>;

inline std::string CoordinatesOf(const Dims& dims, int64_t index) {
  std::vector<int64_t> at(dims.size());
  for (size_t i = dims.size(); i-- > 0;) {
    at[i] = index % dims[i].second;
    index /= dims[i].second;
  }
  std::ostringstream text;
  for (size_t i = 0; i < dims.size(); ++i) {
    text << (i == 0 ? "[" : ",") << dims[i].first << "=" << at[i];
  }
  text << "]";
  return text.str();
}

// Checks |got − want| ≤ tolerance · max(1, |want|) for every element. NaN is never close.
template <class Got, class Want>
::testing::AssertionResult Close(const std::string& name, const Got& got, const Want& want,
                                 const Dims& dims, double tolerance) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure()
           << name << ": " << got.size() << " elements vs " << want.size();
  }
  double worst = 0;
  int64_t where = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = tolerance * std::max(1.0, std::abs(static_cast<double>(want[i])));
    const double error =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])) / bound;
    if (!(error <= worst)) {
      worst = error;
      where = static_cast<int64_t>(i);
      if (std::isnan(error)) break;
    }
  }
  if (worst <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << name << CoordinatesOf(dims, where) << ": " << got[where] << " vs " << want[where]
         << ", " << worst << "x the bound of " << tolerance;
}

// Checks that both have the same bits. −0 and 0 differ; NaNs with the same bits are equal.
template <class T>
::testing::AssertionResult SameBits(const std::string& name, std::span<const T> a,
                                    std::span<const T> b, const Dims& dims) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << name << ": " << a.size() << " vs " << b.size();
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure() << name << CoordinatesOf(dims, static_cast<int64_t>(i))
                                           << ": " << a[i] << " and " << b[i] << " differ in bits";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace nsa::testing
