package packager

// Types of NAL units (ISO/IEC 23008-2 table 7-1).
const (
	hevcFirstIRAP = 16
	hevcLastIRAP  = 23
	hevcSetS      = 33
	hevcAUD       = 35
)

// readHEVCReorder reads sps_max_num_reorder_pics of the highest layer from a sequence parameter
// set (section 7.3.2.2.1).
func readHEVCReorder(unit []byte) (uint32, error) {
	r := &bitReader{unit: unit, at: 2}
	r.u(4) // sps_video_parameter_set_id
	layers := r.u(3)
	r.flag() // sps_temporal_id_nesting_flag
	r.skipProfiles(layers)
	r.ue() // sps_seq_parameter_set_id
	if r.ue() == 3 {
		r.flag() // separate_colour_plane_flag
	}
	r.ue() // pic_width_in_luma_samples
	r.ue()
	if r.flag() {
		for range 4 {
			r.ue() // conf_win_…_offset
		}
	}
	r.ue() // bit_depth_luma_minus8
	r.ue()
	r.ue() // log2_max_pic_order_cnt_lsb_minus4
	first := layers
	if r.flag() { // sps_sub_layer_ordering_info_present_flag
		first = 0
	}
	reorder := uint32(0)
	for i := first; i <= layers; i++ {
		r.ue()
		reorder = r.ue()
		r.ue()
	}
	if r.ended || reorder > 16 {
		return 0, broken("a sequence parameter set that cannot be read")
	}
	return reorder, nil
}

// skipProfiles skips profile_tier_level (section 7.3.3) with the given number of sub-layers.
func (r *bitReader) skipProfiles(layers uint32) {
	for range 11 {
		r.u(8) // general_…
	}
	r.u(8) // general_level_idc
	var has [8][2]bool
	for i := range layers {
		has[i] = [2]bool{r.flag(), r.flag()}
	}
	if layers > 0 {
		r.u(uint(2 * (8 - layers)))
	}
	for i := range layers {
		if has[i][0] {
			for range 11 {
				r.u(8)
			}
		}
		if has[i][1] {
			r.u(8)
		}
	}
}
