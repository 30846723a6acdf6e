// The colours of charts in pictures, those of the live page (server/web/page/style.css).
#pragma once

#include <array>

#include "client/show/draw/chart.h"

namespace nsa::client {

// "#rrggbb".
struct Palette {
  const char* back;
  const char* ink;   // titles
  const char* soft;  // other texts, axes
  const char* grid;
  std::array<const char*, kColours> curves;
};

inline constexpr Palette kLight = {
    "#ffffff",
    "#1a1d21",
    "#5f6772",
    "#e6e9ed",
    {"#2f5fd0", "#d1660a", "#1f8a4c", "#7d4cc0", "#bf3b3f", "#14808f", "#b83f83", "#6b7480"}};
inline constexpr Palette kDark = {
    "#16191d",
    "#e5e8ec",
    "#9aa3ae",
    "#2a2f36",
    {"#7aa5f5", "#f0994e", "#56c288", "#b18cf0", "#f0797a", "#4fbccb", "#e884b8", "#9aa3ae"}};

}  // namespace nsa::client
