#include "server/web/quantities.h"

#include "common/record/quantities.h"

namespace nsa::server {
namespace {

const char* KindWord(record::Of of) {
  switch (of) {
    case record::Of::kStep:
      return "step";
    case record::Of::kLayer:
      return "layer";
    case record::Of::kGpu:
      return "gpu";
    default:
      return "validation";
  }
}

const char* FormatWord(record::View::Kind kind) {
  switch (kind) {
    case record::View::kRate:
      return "rate";
    case record::View::kCount:
      return "count";
    case record::View::kPercent:
      return "percent";
    case record::View::kSeconds:
      return "seconds";
    case record::View::kBytes:
      return "bytes";
    case record::View::kWord:
      return "word";
    default:
      return "number";
  }
}

const char* AlarmWord(record::View::Alarm alarm) {
  if (alarm == record::View::kLow) return "low";
  return alarm == record::View::kHigh ? "high" : "";
}

const char* OrEmpty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

Json QuantitiesJson() {
  Json list = Json::array();
  for (const record::Quantity& quantity : record::kQuantities) {
    const record::View& view = quantity.view;
    if (view.label == nullptr) continue;
    list.push_back({{"name", quantity.name},
                    {"kind", KindWord(quantity.of())},
                    {"label", view.label},
                    {"note", view.note},
                    {"brief", OrEmpty(view.brief)},
                    {"unit", quantity.unit},
                    {"meaning", quantity.meaning},
                    {"format", FormatWord(view.kind)},
                    {"digits", view.digits},
                    {"curve", quantity.curve},
                    {"must_be_finite", quantity.must_be_finite},
                    {"chart", view.chart},
                    {"compared", view.compared},
                    {"from_zero", view.from_zero},
                    {"spikes", view.spikes},
                    {"map", view.map},
                    {"most", view.most},
                    {"alarm", AlarmWord(view.alarm)},
                    {"family", OrEmpty(quantity.series.family)},
                    {"member", OrEmpty(quantity.series.value)}});
  }
  return {{"quantities", std::move(list)}};
}

}  // namespace nsa::server
