#pragma once

// Plots of a benchmark's numbers as one SVG.

#include <string>
#include <utility>
#include <vector>

namespace baltoro {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct PlotPanel {
  std::string title, x_name;
  bool doubling = false;  // the x axis is of a logarithm, with a tick at each power of two
  bool percent = false;   // y goes from 0 to 1 and is shown in percent; else from 0 to the largest
  std::vector<PlotLine> lines = {};
};

// Two panels a row.
std::string PlotSvg(const std::string& title, const std::vector<PlotPanel>& panels);

}  // namespace baltoro
