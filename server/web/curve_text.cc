#include "server/web/curve_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <string_view>

#include "server/decide/curve.h"

namespace nsa::server {
namespace {

constexpr int64_t kNanosPerMilli = 1'000'000;
// A number with its comma; the shortest form of a float has at most 15 characters.
constexpr size_t kUsualNumber = 11;

template <typename Value>
void AddNumber(Value value, std::string* text) {
  std::array<char, 32> digits;
  const std::to_chars_result end = std::to_chars(digits.begin(), digits.end(), value);
  text->append(digits.data(), end.ptr);
}

// `value` adds one of a bucket.
template <typename Value>
void AddArray(std::string_view name, const std::vector<v1::CurveBucket>& buckets, Value value,
              std::string* text) {
  text->append("\"").append(name).append("\":[");
  for (const v1::CurveBucket& bucket : buckets) {
    if (&bucket != &buckets.front()) text->push_back(',');
    value(bucket);
  }
  text->push_back(']');
}

void AddFloat(float value, bool there, std::string* text) {
  if (there && std::isfinite(value)) {
    AddNumber(value, text);
  } else {
    text->append("null");
  }
}

void AddColumns(const std::vector<v1::CurveBucket>& buckets, int entry, std::string* text) {
  const auto measured = [entry](const v1::CurveBucket& bucket) {
    return entry < bucket.count_size() && bucket.count(entry) > 0;
  };
  const auto spread = [&](const v1::CurveBucket& bucket) {
    return measured(bucket) && bucket.least(entry) != bucket.greatest(entry);
  };
  text->push_back('{');
  AddArray(
      "mean", buckets,
      [&](const auto& one) { AddFloat(measured(one) ? one.mean(entry) : 0, measured(one), text); },
      text);
  text->push_back(',');
  AddArray(
      "min", buckets,
      [&](const auto& one) { AddFloat(spread(one) ? one.least(entry) : 0, spread(one), text); },
      text);
  text->push_back(',');
  AddArray(
      "max", buckets,
      [&](const auto& one) { AddFloat(spread(one) ? one.greatest(entry) : 0, spread(one), text); },
      text);
  text->push_back('}');
}

// The curves of values with these names.
std::string CurvesText(const std::vector<v1::CurveBucket>& buckets,
                       std::span<const std::string_view> names) {
  std::string text;
  text.reserve(256 + buckets.size() * kUsualNumber * (3 + 3 * names.size()));
  text.append("{\"width\":");
  AddNumber(buckets.empty() ? 1 : buckets.front().width(), &text);
  text.push_back(',');
  AddArray(
      "step", buckets, [&](const auto& one) { AddNumber(one.last_step(), &text); }, &text);
  text.push_back(',');
  AddArray(
      "time", buckets,
      [&](const auto& one) { AddNumber(one.unix_nanos() / kNanosPerMilli, &text); }, &text);
  text.push_back(',');
  AddArray(
      "tokens", buckets, [&](const auto& one) { AddNumber(one.total_tokens(), &text); }, &text);
  text.append(",\"values\":{");
  for (size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "\"" : ",\"").append(names[i]).append("\":");
    AddColumns(buckets, static_cast<int>(i), &text);
  }
  text.append("}}");
  return text;
}

}  // namespace

std::string StepsText(const std::vector<v1::CurveBucket>& buckets) {
  return CurvesText(buckets, kStepValues);
}

std::string GpusText(const std::vector<v1::CurveBucket>& buckets) {
  return buckets.empty() ? "{}" : CurvesText(buckets, kGpuValues);
}

}  // namespace nsa::server
