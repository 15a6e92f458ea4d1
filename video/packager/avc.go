package packager

// avcSPS is the needed part of a sequence parameter set (ISO/IEC 14496-10 section 7.3.2.1.1).
type avcSPS struct {
	chroma               bool // slices have chroma samples: ChromaArrayType is not 0
	separate             bool
	frameNumBits         uint
	orderType            uint32
	orderBits            uint
	orderDeltaAlwaysZero bool
	frameOnly            bool
	reorder              uint32 // most frames before a frame in decoding order and after it in output order
}

// avcPPS is the needed part of a picture parameter set (section 7.3.2.2).
type avcPPS struct {
	sps              *avcSPS
	entropyCoding    bool
	bottomOrder      bool
	references       [2]uint32 // num_ref_idx_l0_default_active_minus1, l1
	weighted         bool
	bipredWeighted   uint32
	deblockControl   bool
	redundantPicture bool
}

// Types of NAL units.
const (
	avcSlice = 1
	avcIDR   = 5
	avcSetS  = 7
	avcAUD   = 9
)

// readAVCSPS parses a sequence parameter set from a NAL unit.
func readAVCSPS(unit []byte) (id uint32, s *avcSPS, err error) {
	r := &bitReader{unit: unit, at: 1}
	profile := r.u(8)
	constraints := r.u(8)
	level := r.u(8)
	id = r.ue()
	s = &avcSPS{chroma: true}
	switch profile {
	case 100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135:
		format := r.ue()
		if format == 3 {
			s.separate = r.flag()
		}
		s.chroma = format != 0 && !s.separate
		r.ue()   // bit_depth_luma_minus8
		r.ue()   // bit_depth_chroma_minus8
		r.flag() // qpprime_y_zero_transform_bypass_flag
		if r.flag() {
			lists := 8
			if format == 3 {
				lists = 12
			}
			for i := range lists {
				if !r.flag() {
					continue
				}
				size := 16
				if i >= 6 {
					size = 64
				}
				for j, last, next := 0, int32(8), int32(8); j < size && !r.ended; j++ {
					if next != 0 {
						next = (last + r.se()) & 255
					}
					if next != 0 {
						last = next
					}
				}
			}
		}
	}
	s.frameNumBits = uint(r.ue()) + 4
	s.orderType = r.ue()
	switch s.orderType {
	case 0:
		s.orderBits = uint(r.ue()) + 4
	case 1:
		s.orderDeltaAlwaysZero = r.flag()
		r.se()
		r.se()
		n := r.ue()
		for i := uint32(0); i < n && !r.ended; i++ {
			r.se()
		}
	}
	references := r.ue()
	r.flag() // gaps_in_frame_num_value_allowed_flag
	width, height := uint64(r.ue())+1, uint64(r.ue())+1
	s.frameOnly = r.flag()
	if !s.frameOnly {
		height *= 2
		r.flag() // mb_adaptive_frame_field_flag
	}
	r.flag() // direct_8x8_inference_flag
	if r.flag() {
		for range 4 {
			r.ue() // frame_crop_…_offset
		}
	}
	vui := r.flag()
	if r.ended || id > 31 || s.frameNumBits > 16 || s.orderBits > 16 || s.orderType > 2 {
		return 0, nil, broken("a sequence parameter set that cannot be read")
	}
	// The default is the size of the decoded picture buffer, or 0 if output order is decoding
	// order (section E.2.1).
	s.reorder = uint32(min(16, dpbMacroblocks(level)/max(1, width*height)))
	if intra := constraints>>4&1 == 1; s.orderType == 2 || references == 0 ||
		intra && (profile == 44 || profile == 86 || profile == 100 || profile == 110 || profile == 122 || profile == 244) {
		s.reorder = 0
	}
	if vui {
		if reorder, ok := readAVCReorder(r); ok {
			s.reorder = min(16, reorder)
		}
	}
	return id, s, nil
}

// dpbMacroblocks returns MaxDpbMbs of a level (table A-1).
func dpbMacroblocks(level uint32) uint64 {
	for _, l := range [...]struct {
		level uint32
		most  uint64
	}{
		{10, 396},
		{11, 900},
		{20, 2376},
		{21, 4752},
		{30, 8100},
		{31, 18000},
		{32, 20480},
		{41, 32768},
		{42, 34816},
		{50, 110400},
		{52, 184320},
	} {
		if level <= l.level {
			return l.most
		}
	}
	return 696320
}

// readAVCReorder reads max_num_reorder_frames from the VUI parameters (section E.1.1). The result
// is false without this field.
func readAVCReorder(r *bitReader) (uint32, bool) {
	if r.flag() && r.u(8) == 255 { // Extended_SAR
		r.u(32)
	}
	if r.flag() {
		r.flag() // overscan_appropriate_flag
	}
	if r.flag() {
		r.u(4)
		if r.flag() {
			r.u(24) // colour_description
		}
	}
	if r.flag() {
		r.ue() // chroma_sample_loc_type_…_field
		r.ue()
	}
	if r.flag() {
		r.u(32) // num_units_in_tick
		r.u(32) // time_scale
		r.flag()
	}
	nal := r.flag()
	if nal {
		skipAVCHRD(r)
	}
	vcl := r.flag()
	if vcl {
		skipAVCHRD(r)
	}
	if nal || vcl {
		r.flag() // low_delay_hrd_flag
	}
	r.flag() // pic_struct_present_flag
	if !r.flag() {
		return 0, false
	}
	r.flag() // motion_vectors_over_pic_boundaries_flag
	for range 4 {
		r.ue() // max_bytes_per_pic_denom to log2_max_mv_length_vertical
	}
	n := r.ue()
	return n, !r.ended
}

// skipAVCHRD skips hrd_parameters (section E.1.2).
func skipAVCHRD(r *bitReader) {
	n := r.ue()
	r.u(8)
	for i := uint32(0); i <= n && !r.ended; i++ {
		r.ue()
		r.ue()
		r.flag()
	}
	r.u(20)
}

// readAVCPPS parses a picture parameter set. The set must refer to one of sps.
func readAVCPPS(unit []byte, sps map[uint32]*avcSPS) (id uint32, p *avcPPS, err error) {
	r := &bitReader{unit: unit, at: 1}
	id = r.ue()
	p = &avcPPS{sps: sps[r.ue()]}
	p.entropyCoding = r.flag()
	p.bottomOrder = r.flag()
	if r.ue() > 0 {
		return 0, nil, broken("slice groups")
	}
	p.references[0] = r.ue()
	p.references[1] = r.ue()
	p.weighted = r.flag()
	p.bipredWeighted = r.u(2)
	r.se() // pic_init_qp_minus26
	r.se() // pic_init_qs_minus26
	r.se() // chroma_qp_index_offset
	p.deblockControl = r.flag()
	r.flag() // constrained_intra_pred_flag
	p.redundantPicture = r.flag()
	if r.ended || id > 255 || p.sps == nil || p.references[0] > 31 || p.references[1] > 31 {
		return 0, nil, broken("a picture parameter set that cannot be read")
	}
	return id, p, nil
}

// avcSliceHeader returns how many bytes of a slice's NAL unit belong, even in part, to its header
// (section 7.3.3).
func avcSliceHeader(unit []byte, sets map[uint32]*avcPPS) (int, error) {
	const ( // slice_type modulo 5
		sliceP = iota
		sliceB
		sliceI
		sliceSP
		sliceSI
	)
	r := bitReader{unit: unit, at: 1}
	idr, reference := unit[0]&31 == avcIDR, unit[0]>>5&3 != 0
	r.ue() // first_mb_in_slice
	kind := r.ue() % 5
	p := sets[r.ue()]
	if p == nil {
		return 0, broken("a slice of a picture parameter set that is not there")
	}
	s := p.sps
	if s.separate {
		r.u(2) // colour_plane_id
	}
	r.u(s.frameNumBits)
	field := false
	if !s.frameOnly {
		if field = r.flag(); field {
			r.flag() // bottom_field_flag
		}
	}
	if idr {
		r.ue() // idr_pic_id
	}
	switch {
	case s.orderType == 0:
		r.u(s.orderBits)
		if p.bottomOrder && !field {
			r.se()
		}
	case s.orderType == 1 && !s.orderDeltaAlwaysZero:
		r.se()
		if p.bottomOrder && !field {
			r.se()
		}
	}
	if p.redundantPicture {
		r.ue()
	}
	if kind == sliceB {
		r.flag() // direct_spatial_mv_pred_flag
	}
	lists := 0
	references := p.references
	switch kind {
	case sliceP, sliceSP:
		lists = 1
	case sliceB:
		lists = 2
	}
	if lists > 0 && r.flag() {
		for i := range lists {
			references[i] = r.ue()
		}
	}
	if references[0] > 31 || references[1] > 31 {
		return 0, broken("a slice with %d references", max(references[0], references[1]))
	}
	for range lists { // ref_pic_list_modification
		if !r.flag() {
			continue
		}
		for r.ue() != 3 && !r.ended {
			r.ue()
		}
	}
	if lists == 1 && p.weighted || lists == 2 && p.bipredWeighted == 1 { // pred_weight_table
		r.ue()
		if s.chroma {
			r.ue()
		}
		for i := range lists {
			for range references[i] + 1 {
				if r.flag() {
					r.se()
					r.se()
				}
				if s.chroma && r.flag() {
					for range 4 {
						r.se()
					}
				}
			}
		}
	}
	if reference { // dec_ref_pic_marking
		if idr {
			r.u(2)
		} else if r.flag() {
			for !r.ended {
				operation := r.ue()
				if operation == 0 {
					break
				}
				if operation != 5 {
					r.ue()
				}
				if operation == 3 {
					r.ue()
				}
			}
		}
	}
	if p.entropyCoding && lists > 0 {
		r.ue() // cabac_init_idc
	}
	r.se() // slice_qp_delta
	if kind == sliceSP || kind == sliceSI {
		if kind == sliceSP {
			r.flag()
		}
		r.se()
	}
	if p.deblockControl && r.ue() != 1 {
		r.se()
		r.se()
	}
	if r.ended {
		return 0, broken("a slice that ends in its header")
	}
	return r.bytesRead(), nil
}
